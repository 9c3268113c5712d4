"""The CPU default: a graph that we build ourselves from OpenVINO operations, with paged attention."""
