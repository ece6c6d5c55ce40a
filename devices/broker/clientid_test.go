package broker_test

import "testing"

// TestClientIDBeginsWithTheUser checks the rule for client ids. A device may have several connections, such as
// mosquitto_sub and mosquitto_pub at the same time, but it cannot take over the session of another device.
func TestClientIDBeginsWithTheUser(t *testing.T) {
	t.Parallel()
	b := startBroker(t, nil)
	for _, id := range []string{"a", "a/sub", "a/pub", "a/"} {
		o, client := clientOptions(b, id, "a", "secret-of-a")
		if err := client.connect(t, o); err != nil {
			t.Errorf("client id %q of user a: %v", id, err)
		}
	}
	for _, id := range []string{"b", "b/sub", "ab", "a.b", "a-1", "/a", "A/sub", "aa/sub", internalUser} {
		o, client := clientOptions(b, id, "a", "secret-of-a")
		if err := client.connect(t, o); err == nil {
			t.Errorf("client id %q of user a: connected", id)
		}
	}
}
