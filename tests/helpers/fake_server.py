"""`python -m tests.helpers.fake_server FACTORY [flags of hasten serve]`: a server process.

FACTORY is a function of `tests.helpers.fake_engine`; all else is as `hasten serve` does it.
"""

import sys
from functools import partial
from unittest.mock import patch

from hasten.api.cli.main import main
from hasten.api.http import server

from tests.helpers.fake_engine import load_byte_tokenizer

if __name__ == "__main__":
    factory, *flags = sys.argv[1:]
    parts = server.Parts(f"tests.helpers.fake_engine:{factory}", load_byte_tokenizer)
    with patch.object(server, "run_server", partial(server.run_server, parts=parts)):
        main(["serve", *flags])
