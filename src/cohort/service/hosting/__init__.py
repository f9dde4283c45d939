"""What `cohort service` starts: its file, its base models, its application, its process."""
