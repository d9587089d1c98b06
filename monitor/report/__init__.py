"""What history says about objectives and contracts: attainment, budgets, outages, what-if, SLAs.

`evaluate` is pure and judges stored slots, `gather` reads them, `sla` judges them by a vendor's
rule, `render` makes text, JSON, CSV and HTML.
"""

from monitor.report.evaluate import ProbeReport, Report, SloReport, WhatIf
from monitor.report.gather import gather
from monitor.report.render import FORMATS, render

__all__ = ["FORMATS", "ProbeReport", "Report", "SloReport", "WhatIf", "gather", "render"]
