package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// recordReports sends a report of each device in this order, and writes the reports to the list of recent devices.
func (b *testAPI) recordReports(devices ...string) {
	b.Helper()
	for _, d := range devices {
		b.SendReport(d, `{"accept":false}`).Expect(200)
	}
	b.Must(b.Dispatcher.Seen.FlushRecent(b.Context()))
}

func (b *testAPI) recentDevices(n int) (ids []string) {
	b.Helper()
	for _, d := range listField(b.Get(fmt.Sprintf("/v1/devices?recent=%d", n)).Expect(200).Object(), "devices") {
		ids = append(ids, fmt.Sprint(asObject(d)["id"]))
	}
	return ids
}

func (b *testAPI) expectRecentDevices(n int, want ...string) {
	b.Helper()
	if diff := cmp.Diff(want, b.recentDevices(n)); diff != "" {
		b.Errorf("recent=%d: %s", n, diff)
	}
}

func TestRecentDevicesAreNewestFirst(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.expectRecentDevices(100)
		b.Call("POST", "/v1/devices", adminToken, `{"id":"a","tags":{"area":"330100"}}`).Expect(201)
		b.createDevice("silent")
		b.recordReports("a", "b", "c", "a")
		b.expectRecentDevices(100, "a", "c", "b")
		b.expectRecentDevices(2, "a", "c")
		b.recordReports("b")
		b.expectRecentDevices(1, "b")
		first := asObject(listField(b.Get("/v1/devices?recent=2").Object(), "devices")[1])
		if asObject(first["tags"])["area"] != "330100" || first["last_seen"] == nil {
			b.Errorf("entry %v", first)
		}
		rows := b.getWithAccept("/v1/devices?recent=2", csvType).Expect(200).CSVRows()
		if len(rows) != 3 || rows[1][0] != "b" || rows[2][0] != "a" {
			b.Errorf("exported %v", rows)
		}
		// A deleted device leaves the list of recent devices. If it is created again, it is in the list only after
		// its next report.
		b.Call("DELETE", "/v1/devices/a", adminToken, nil).Expect(200)
		b.expectRecentDevices(2, "b", "c")
		b.createDevice("a")
		b.expectRecentDevices(100, "b", "c")
		b.recordReports("a")
		b.expectRecentDevices(100, "a", "b", "c")
	})
}

// TestRecentDevicesAreThoseOfAllReplicas checks the list of recent devices when several replicas each write the
// reports that they received.
func TestRecentDevicesAreThoseOfAllReplicas(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		other := startOn(b.T, b.Stores)
		b.SendReport("a", `{}`).Expect(200)
		other.SendReport("b", `{}`).Expect(200)
		b.SendReport("c", `{}`).Expect(200)
		other.SendReport("a", `{}`).Expect(200)
		for _, d := range []*dispatcher.Dispatcher{other.Dispatcher, b.Dispatcher} {
			b.Must(d.Seen.FlushRecent(b.Context()))
		}
		b.expectRecentDevices(10, "a", "c", "b")
		other.expectRecentDevices(10, "a", "c", "b")
	})
}

// The list of recent devices has one page. If the devices are large, the page ends early, as every other page does.
func TestRecentListOfLargeDevicesEndsSooner(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	const devices = 250
	for n := range devices {
		b.SendReport(fmt.Sprintf("d-%03d", n), `{"accept":false,"attributes":{"x":"`+strings.Repeat("x", 8000)+`"}}`).Expect(200)
	}
	b.Call("DELETE", "/v1/devices/d-248", adminToken, nil).Expect(200)
	b.recordReports()
	a := b.Get("/v1/devices?recent=1000").Expect(200)
	ids := b.recentDevices(1000)
	newestFirst := slices.IsSortedFunc(ids, func(one, next string) int { return strings.Compare(next, one) })
	if len(a.Body) > 3<<20/2 || len(ids) < 100 || len(ids) > 200 || ids[0] != "d-249" || ids[1] != "d-247" || !newestFirst {
		t.Errorf("%d bytes, %d devices: %v", len(a.Body), len(ids), ids)
	}
	if few := b.recentDevices(60); len(few) != 60 {
		t.Errorf("%d of 60 devices", len(few))
	}
}

func TestRecentRefusesBadInput(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, query := range []string{"recent=0", "recent=1001", "recent=-1", "recent=many", "recent=5&tag=a:b", "recent=5&blocked=true", "recent=5&prefix=a", "recent=5&page_token=YQ"} {
		b.Get("/v1/devices?"+query).ExpectProblem(422, "invalid_field", "recent")
	}
}

// TestOnlyTheListOfRecentDevicesNeedsRedis checks the API without Redis: only the list of recent devices fails. The
// reports of this time are written to the list later.
func TestOnlyTheListOfRecentDevicesNeedsRedis(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	b := startEmbedded(t, func(s *rig.Options) {
		list := seen.NewList(backends.OpenRedis(t, servers.RedisAt{Addr: server.Addr()}).Client)
		s.API.Recent, s.Dispatcher.Recent = list, list
	})
	b.recordReports("a")
	server.Close()
	b.Get("/v1/devices?recent=10").ExpectProblem(503, "unavailable", "Redis")
	b.Get("/v1/devices").Expect(200)
	b.SendReport("b", `{}`).Expect(200)
	if err := b.Dispatcher.Seen.FlushRecent(t.Context()); err == nil {
		t.Error("told a list that is down")
	}
	b.SendReport("c", `{}`).Expect(200)
	b.Must(server.Restart())
	server.FlushAll()
	b.recordReports("d")
	b.expectRecentDevices(10, "d", "c", "b")
}
