"""What we measure: one file per figure, each driving a real Gateway process with a mock model in another process."""
