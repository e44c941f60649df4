"""What was served and clicked, as it was served: logged by servers, joined to rows for training."""

from ctr.stream.event_log import CLICKS, IMPRESSIONS, EventWriter, now, time_of
from ctr.stream.join import Joined, join
