"""The configuration: one YAML file, environment variables, and what the program makes of them.

`load` is all that the rest of the program needs. Inside, one step each: `source` reads the file,
`override` applies the environment, `schema` checks types and words problems, `keyring` finds API
keys, `build` completes.
"""

from monitor.config.alerting import RULES, AlertRules, Channel
from monitor.config.build import Config, EndpointConfig, is_public, load
from monitor.config.problem import ConfigError, Problem
from monitor.config.schema import DEFAULTS, KINDS, Budget, LoadCaps, Price, Retention, System

__all__ = [
    "DEFAULTS",
    "KINDS",
    "RULES",
    "AlertRules",
    "Budget",
    "Channel",
    "Config",
    "ConfigError",
    "EndpointConfig",
    "LoadCaps",
    "Price",
    "Problem",
    "Retention",
    "System",
    "is_public",
    "load",
]
