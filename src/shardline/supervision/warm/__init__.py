"""Warm ranks: rank programs that are forked from a server which has already imported torch and Lightning.

The job asks the server of its environment over a socket (`client`). The server (`training.rank_server`) forks a
keeper for each request (`keeper`), which forks the ranks and stands where torchrun's agent would.
"""
