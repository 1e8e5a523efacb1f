"""Every module that brings commands; importing this one makes them all known."""

from openclaw.inbound.commands import approve as approve
from openclaw.inbound.commands import budget as budget
from openclaw.inbound.commands import compact as compact
from openclaw.inbound.commands import gateway as gateway
from openclaw.inbound.commands import help as help
from openclaw.inbound.commands import models as models
from openclaw.inbound.commands import queue as queue
from openclaw.inbound.commands import session as session
from openclaw.inbound.commands import status as status
from openclaw.inbound.commands import window as window
