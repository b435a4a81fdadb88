"""The promises that Onceonly needs of a storage, tried where the user will run: `onceonly probe`."""
