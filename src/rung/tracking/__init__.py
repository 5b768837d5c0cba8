"""What happened: the run on disk, and what each metric means."""
