return raw(KEYS[1])
