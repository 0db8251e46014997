"""What a worker runs on: its device, CPU and memory, and what others take of them."""
