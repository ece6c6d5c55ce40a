package topology

import (
	"strings"
	"testing"
)

// TestReplicasHaveAListenerOfTheirOwn checks that the broker has a separate listener for the replicas, which share one account. On a
// listener that uses the user name as the client id, only one replica could be connected. The documentation must name this requirement.
func TestReplicasHaveAListenerOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"dynsec", "passwords"} {
		_, config, _ := strings.Cut(string(readRepoFile(t, "deploy/mosquitto/"+variant+"/mosquitto.conf")), "\nlistener 1883")
		devices, replicas, found := strings.Cut(config, "\nlistener 1884")
		if !found || !strings.Contains(devices, "\nuse_username_as_clientid true\n") || strings.Contains(replicas, "use_username_as_clientid") {
			t.Errorf("%s: devices and replicas are not apart", variant)
		}
	}
	_, table, _ := strings.Cut(string(readRepoFile(t, "docs/operations.md")), "\n| an MQTT broker")
	if row, _, _ := strings.Cut(table, "\n"); !strings.Contains(row, "Replicas need a listener without `use_username_as_clientid`") {
		t.Errorf("the row of the broker does not say what replicas need: %s", row)
	}
}
