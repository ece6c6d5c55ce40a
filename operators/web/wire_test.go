package web_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
)

// TestADevicePageShowsTheWire checks the pages of devices in a browser: each says over which protocol its device last reported. The page of a
// device that speaks hawkBit's DDI says that it cannot read its task. An operator allows metadata_only in the form of its profile. Then the
// device gets the task.
func TestADevicePageShowsTheWire(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.Do("PUT", "/v1/profiles/own", map[string]any{}, nil)
	report := func(device devices.ID, wire devices.Wire) devices.Reply {
		t.Helper()
		caller := devices.Caller{Device: device, Via: devices.ViaFleetToken, Wire: wire}
		reply, err := b.Dispatcher.HandleReport(t.Context(), caller, devices.Report{Accept: true})
		b.Must(err)
		return reply
	}
	wires := map[devices.ID]devices.Wire{"over-http": devices.WireHTTP, "over-mqtt": devices.WireMQTT, "over-ddi": devices.WireHawkbit}
	for device, wire := range wires {
		report(device, wire)
	}
	b.Must(b.Dispatcher.Seen.Flush(t.Context()))
	b.Do("PATCH", "/v1/devices/over-ddi", map[string]any{"profile": "own"}, nil)
	b.createPool("p", 1, "over-ddi")
	tab := openTab(t)
	for device, want := range map[devices.ID]string{"over-http": "HTTP", "over-mqtt": "MQTT", "over-ddi": "hawkBit’s DDI"} {
		tab.open(b.URL + "/devices/" + string(device))
		if got := evalJS[string](tab, `[...document.querySelectorAll("#device dt")].find((name) => name.textContent === "Reports over").nextElementSibling.textContent`); got != want {
			t.Errorf("%s reports over %q, want %q", device, got, want)
		}
		tab.checkScreen("device-" + string(device))
	}
	tab.open(b.URL + "/devices/over-ddi")
	expectContains(t, tab.elementText("#why"), "device over-ddi last reported by hawkBit's DDI", "set metadata_only in the profile")
	if reply := report("over-ddi", devices.WireHawkbit); reply.Reason != devices.ReasonWrongWire {
		t.Errorf("%+v", reply)
	}
	tab.checkScreen("device-wrong-wire")
	tab.open(b.URL + "/profiles/own")
	tab.click(`[name="metadata_only"]`)
	tab.checkScreen("profile-metadata-only")
	tab.click("form.fields button.primary")
	tab.waitForJS(`location.search === "?done=profile-changed"`)
	var profile operators.Profile
	if b.Do("GET", "/v1/profiles/own", nil, &profile); !profile.MetadataOnly {
		t.Errorf("%+v", profile)
	}
	if reply := report("over-ddi", devices.WireHawkbit); reply.Reason != devices.ReasonGranted {
		t.Errorf("%+v", reply)
	}
}
