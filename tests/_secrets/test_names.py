"""Which names are those of secrets, and which are those of data that a training needs under its own value."""

from __future__ import annotations

import importlib
import inspect

import pytest

from composer._secrets.names import Secrecy, secrecy_of


def _words(text: str) -> list[str]:
    return text.split()


SECRET = _words("""
    key token secret password passwd passphrase credential credentials bearer auth pwd jwt cookie
    api_key apiKey APIKey api-key apikey x-api-key WANDB_API_KEY COMET_API_KEY slack_logging_api_key foo_api_key_v2
    access_key secret_key secretKey aws_secret_access_key aws_access_key_id private_key account_key shared_access_key
    ssh_key signing_key mykey license_key foo_key key_v2 api_keys access_keys
    hf_token HF_TOKEN hfToken SLACK_TOKEN auth_token authToken authtoken use_auth_token access_token accessToken
    aws_session_token api_token refresh_tokens token_2 token_value NEPTUNE_API_TOKEN github_token
    db_password dbPassword userPasswordHash db_passwd client_secret clientSecret GCS_SECRET NCCL_SECRET_KEY
    my_credentials google_credentials_json creds Authorization proxy-authorization
    AZURE_STORAGE_CONNECTION_STRING connection_string conn_str slack_webhook_url webhook
    loggers.0.init_args.api_key loggers/0/token basic_auth db_pass
    dsn sentry_dsn oauth oauth2 github_pat my_pat dbpass pw pass_phrase seed_phrase mnemonic SharedAccessSignature
    session_id sessionid kubeconfig auth_header userpass pass_word otp pem csrf access_code unlock_code
    AZURE_STORAGE_KEY
""")
DATA = _words("""
    input_key target_key batch_key label_key image_key sort_key primary_key keys input_keys ignore_keys load_ignore_keys
    save_ignore_keys missing_keys include_keys memory_keys key_padding_mask num_key_value_heads key_dim keypoints
    keyword keywords keyboard keep keep_best monkey turkey hockey
    token_count max_tokens num_tokens max_new_tokens tokens num_prefix_tokens weight_by_tokens token_type token_type_ids
    accumulate_train_batch_on_tokens token_in_epoch tokens_per_second tokenizer tokenizer_name tokenizer_save_dir
    pad_token eos_token bos_token unk_token mask_token cls_token special_tokens additional_special_tokens image_token
    stop_token token_embedding
    key_filename key_environ secret_environ token_path password_file missing_host_key_policy credential_type secret_name
    hash_key storage_key hotkey first_pass password_strength_model secret_santa pat compass
    author authors passes forward_pass secretary bypass lr seed max_duration
""")


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert secrecy_of(name)
    assert secrecy_of(name.upper())


@pytest.mark.parametrize("name", DATA)
def test_names_of_data(name: str) -> None:
    assert secrecy_of(name) is Secrecy.NONE
    assert secrecy_of(name.upper()) is Secrecy.NONE


@pytest.mark.parametrize("name", [None, 3, "", "__", ("key",)])
def test_what_is_no_name(name: object) -> None:
    assert secrecy_of(name) is Secrecy.NONE


def test_arguments_of_what_configurations_name() -> None:
    """Of all arguments of public classes, just these are secrets: a new one has to be looked at."""
    packages = ["algorithms", "callbacks", "loggers", "models", "datasets", "optim", "profiler", "storage", "metrics"]
    found: set[str] = set()
    for package in packages:
        module = importlib.import_module(f"composer.{package}")
        for name in module.__all__:
            made = getattr(module, name)
            if inspect.isclass(made) and not issubclass(made, Exception):
                found |= {argument for argument in inspect.signature(made).parameters if secrecy_of(argument)}
    assert found == {
        "api_token",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "password",
        "slack_logging_api_key",
        "slack_webhook_url",
    }
