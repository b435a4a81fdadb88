"""The promises that Onceonly needs of a storage or of brokers, tried where the user will run: `onceonly probe`."""
