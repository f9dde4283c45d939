"""What people ask of a run's trials from outside: asked, checked and handed over."""
