"""Coverage-guided fuzzing of every parser of bytes or text (docs/fuzzing.md)."""
