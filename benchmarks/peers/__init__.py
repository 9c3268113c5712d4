"""Other engines, each in an environment of its own, asked by JSON lines. The scripts without `paceline` run there."""
