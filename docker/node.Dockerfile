FROM debian:bookworm-slim
