"""The promises of a store, as pytest classes: subclass them in the test suite of your own store.

Every store has ``StoreContract``; each ability has a class of its own, and an ability without its class fails.
``compactor.testing`` shows an example. Nothing here imports pytest.
"""
