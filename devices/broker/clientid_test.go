package broker_test

import "testing"

// One device may have several connections, as mosquitto_sub and mosquitto_pub
// beside each other; none may take over another's.
func TestClientIDBeginsWithTheUser(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, id := range []string{"a", "a/sub", "a/pub", "a/"} {
		o, client := options(b, id, "a", "secret-of-a")
		if err := client.connect(t, o); err != nil {
			t.Errorf("client id %q of user a: %v", id, err)
		}
	}
	for _, id := range []string{"b", "b/sub", "ab", "a.b", "a-1", "/a", "A/sub", "aa/sub", internalUser} {
		o, client := options(b, id, "a", "secret-of-a")
		if err := client.connect(t, o); err == nil {
			t.Errorf("client id %q of user a: connected", id)
		}
	}
}
