"""Settings: what there is, how params.yaml, a profile and overrides combine, and the result."""

from tasks.config.layers import RESOLVED as RESOLVED
from tasks.config.layers import load_resolved as load_resolved
from tasks.config.layers import parse_override as parse_override
from tasks.config.layers import parse_params as parse_params
from tasks.config.layers import read_resolved as read_resolved
from tasks.config.layers import read_yaml as read_yaml
from tasks.config.layers import resolve as resolve
from tasks.config.layers import write_resolved as write_resolved
