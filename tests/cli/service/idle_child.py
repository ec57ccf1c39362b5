"""A child process of a service that does nothing but report, like one without requests."""

import asyncio

from jaxinfer.cli.service.child import begin_as_child, report_while_running

if __name__ == "__main__":
    _, reports = begin_as_child(may_hang=False)
    asyncio.run(report_while_running(reports))
