"""Find secrets and mask them: ``names`` (which names hold secrets), ``texts`` (secrets in a text), ``masking``."""
