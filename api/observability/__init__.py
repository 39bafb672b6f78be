"""What a server tells of itself: records of requests, log lines, traces, what runs now."""
