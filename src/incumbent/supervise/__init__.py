"""Child processes that are stopped while their lease is still proved."""
