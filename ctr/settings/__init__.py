"""What a job can be told, described once: for the command line, for files, and for Python programs."""

from typing import TYPE_CHECKING

from ctr.lazy import lazy_package

if TYPE_CHECKING:
    from ctr.settings.build import BuildJob
    from ctr.settings.calibrate import CalibrateJob
    from ctr.settings.evaluate import EvaluateJob
    from ctr.settings.file import NamedSpec, read_settings, with_file, write_settings
    from ctr.settings.join import JoinJob
    from ctr.settings.predict import PredictJob
    from ctr.settings.serve import ServeJob
    from ctr.settings.setting import Setting, Settings, bounds, setting_of, taking
    from ctr.settings.shared import (
        BadRows,
        EngineName,
        Inputs,
        Lease,
        Master,
        MaxBadFraction,
        Method,
        ModelFolder,
        ModelInRedis,
        RawInputs,
        RawSpec,
        RedisStore,
        Store,
        Values,
        require_engine,
    )
    from ctr.settings.train import STREAM_ONLY, TrainJob
    from ctr.settings.tune import TuneJob

__getattr__ = lazy_package(__name__, __file__)
