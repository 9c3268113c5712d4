"""What to speculate with, predicted from a few timings and one run, and then checked."""
