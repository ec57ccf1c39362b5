"""Constraints on a request's tokens that the host applies as it reads them: host-dependent rows."""
