"""Tests of the images and of docker-compose.yml, with real containers."""
