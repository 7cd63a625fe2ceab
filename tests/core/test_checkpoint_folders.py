"""Names of sharded checkpoints (folders)."""

from __future__ import annotations

import pytest

from composer.core.checkpoint_folders import CheckpointFolders


def test_folder_name_must_change_during_training() -> None:
    assert CheckpointFolders("{run_name}-ba{batch:06d}").name == "{run_name}-ba{batch:06d}"
    with pytest.raises(ValueError, match=r"sharded_ckpt_prefix_dir='ep\{epok\}' has the unknown placeholder"):
        CheckpointFolders("ep{epok}")
