"""What a node removes by itself: runs whose time is over, and what clients sent that is needed no longer."""
