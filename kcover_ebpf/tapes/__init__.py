"""What a job was seen to do, as a file that can be judged again elsewhere (docs/tapes.md)."""
