package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deviceTags returns the tags of a device, as the API shows them.
func (b *testAPI) deviceTags(device string) map[string]any {
	b.Helper()
	tags, _ := b.Get("/v1/devices/" + device).Expect(200).Object()["tags"].(map[string]any)
	return tags
}

func TestRetag(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.importDevices("", csvType, "", "", "device,site,old\na-1,berlin,1\na-2,berlin,\na-3,berlin,1\na-4,paris,1\na-5,berlin,\n").Expect(201)
		const body = `{"set":{"model":"x2"},"unset":["old"]}`
		retag := func(query string) (changed float64, next string) {
			b.Helper()
			answer := b.Call("POST", "/v1/devices/retag?"+query, adminToken, body).Expect(200).Object()
			changed, _ = answer["devices"].(float64)
			next, _ = answer["next_page_token"].(string)
			return changed, next
		}
		if n, next := retag("tag=site:berlin&dry_run=true"); n != 4 || next != "" || b.deviceTags("a-1")["old"] != "1" {
			b.Errorf("a dry run: %v %q %v", n, next, b.deviceTags("a-1"))
		}
		n, next := retag("tag=site:berlin&page_size=3")
		m, last := retag("tag=site:berlin&page_size=3&page_token=" + next)
		if n != 3 || m != 1 || next == "" || last != "" {
			b.Errorf("%v and %v devices, tokens %q and %q", n, m, next, last)
		}
		for device, want := range map[string]map[string]any{
			"a-1": {"site": "berlin", "model": "x2"}, "a-2": {"site": "berlin", "model": "x2"}, "a-4": {"site": "paris", "old": "1"},
		} {
			if diff := cmp.Diff(want, b.deviceTags(device)); diff != "" {
				b.Errorf("%s: %s", device, diff)
			}
		}
		if n, _ := retag("tag=site:berlin"); n != 0 {
			b.Errorf("%v were retagged once more", n)
		}
		events := listField(b.Get("/v1/events?kind=device.changed").Expect(200).Object(), "events")
		if len(events) != 4 || asObject(events[0])["actor"] != "bootstrap" || !strings.Contains(fmt.Sprint(asObject(events[0])["detail"]), `"model":"x2"`) {
			b.Errorf("%v", events)
		}
		for query, names := range map[string]string{"": "at least one", "recent=3": "recent"} {
			b.Call("POST", "/v1/devices/retag?"+query, adminToken, body).ExpectProblem(422, "invalid_field", names)
		}
		for body, names := range map[string]string{
			`{}`: "set, unset", `{"set":{"a":"1"},"unset":["a"]}`: "unset", `{"set":{"a:b":"1"}}`: "colon",
		} {
			b.Call("POST", "/v1/devices/retag?prefix=a", adminToken, body).ExpectProblem(422, "invalid_field", names)
		}
		b.Call("POST", "/v1/devices/retag?prefix=a", adminToken, `{"set":{"big":"`+strings.Repeat("x", 9<<10)+`"}}`).ExpectProblem(422, "invalid_field")
		// Together with the present tags of a device, a change exceeds the limit. The error names this device.
		half := strings.Repeat("x", 5<<10)
		b.Call("POST", "/v1/devices/retag?prefix=a-4", adminToken, `{"set":{"first":"`+half+`"}}`).Expect(200)
		b.Call("POST", "/v1/devices/retag?prefix=a", adminToken, `{"set":{"second":"`+half+`"}}`).ExpectProblem(422, "invalid_field", "device a-4: tags: ")
	})
}

func TestImportUpdates(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		before := tokensByDevice(b.importDevices("", csvType, "", "", "device,site,area\na-1,berlin,1\na-2,berlin,2\n").Expect(201))
		b.Call("PUT", "/v1/profiles/slow", adminToken, `{"limits":[]}`).Expect(201)
		after := tokensByDevice(b.importDevices("?existing=update", csvType, "", "", "device,area,model,:profile\na-1,9,x,slow\na-2,,,\na-3,3,,\n").Expect(201))
		if after["a-1"] != "" || after["a-2"] != "" || after["a-3"] == "" || before["a-1"] == "" {
			b.Errorf("tokens %v, then %v", before, after)
		}
		if diff := cmp.Diff(map[string]any{"site": "berlin", "area": "9", "model": "x"}, b.deviceTags("a-1")); diff != "" {
			b.Error(diff)
		}
		if diff := cmp.Diff(map[string]any{"site": "berlin", "area": "2"}, b.deviceTags("a-2")); diff != "" {
			b.Error(diff)
		}
		if profile := b.Get("/v1/devices/a-1").Expect(200).Object()["profile"]; profile != "slow" {
			b.Errorf("profile %v", profile)
		}
		if n := len(listField(b.Get("/v1/events?kind=device.changed").Expect(200).Object(), "events")); n != 1 {
			b.Errorf("%d devices changed, want 1", n)
		}
		// One line of the import is invalid, so the whole import is refused.
		b.importDevices("?existing=update", csvType, "", "", "device,area,:profile\na-2,5,\na-1,7,none\n").ExpectProblem(422, "invalid_line", "line 3")
		if b.deviceTags("a-2")["area"] != "2" {
			b.Error("a part of a refused import stayed")
		}
	})
}
