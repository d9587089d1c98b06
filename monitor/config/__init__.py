"""The configuration: one YAML file, environment variables, and what the program makes of them.

`load` is all that the rest of the program needs. Inside, one step each: `source` reads the file,
`override` applies the environment, `schema` checks types and words problems, `keyring` finds API
keys, `build` completes.
"""

from monitor.config.alerting import RULES, AlertRules, Channel
from monitor.config.build import Config, EndpointConfig, is_public, load
from monitor.config.problem import ConfigError, Problem
from monitor.config.schema import DEFAULTS, KINDS, Budget, LoadCaps, Price, Retention, System
from monitor.config.sla import Credit, SlaRule, SlaTerm, load_sla
from monitor.config.values import duration as seconds
from monitor.config.values import percent_of as percent

__all__ = [
    "DEFAULTS",
    "KINDS",
    "RULES",
    "AlertRules",
    "Budget",
    "Channel",
    "Config",
    "ConfigError",
    "Credit",
    "EndpointConfig",
    "LoadCaps",
    "Price",
    "Problem",
    "Retention",
    "SlaRule",
    "SlaTerm",
    "System",
    "is_public",
    "load",
    "load_sla",
    "percent",
    "seconds",
]
