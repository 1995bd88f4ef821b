"""What tests stand on: real servers, a faulty network, raw HTTP, a scriptable upstream."""
