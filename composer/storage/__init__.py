"""Files wherever they are: folders of this machine, object stores, servers."""
