"""Output: progress in the terminal, tables, figures, the report page, and event files for TensorBoard."""
