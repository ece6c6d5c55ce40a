package api_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/store"
)

// twoDeviceStore is a ledger that examines only two devices in each call of a search.
type twoDeviceStore struct{ api.Store }

func (n twoDeviceStore) SilentDevices(ctx context.Context, f store.DeviceFilter, since time.Duration, _ int) (store.DeviceSearchPage, error) {
	return n.Store.SilentDevices(ctx, f, since, 2) //nolint:wrapcheck // only for a test
}

func (n twoDeviceStore) DevicesWithIDPart(ctx context.Context, f store.DeviceFilter, part string, _ int) (store.DeviceSearchPage, error) {
	return n.Store.DevicesWithIDPart(ctx, f, part, 2) //nolint:wrapcheck // only for a test
}

// listDevices returns the ids of the devices that match query, by page. It reads at most 20 pages.
func (b *testAPI) listDevices(query string) (pages [][]string) {
	for token, more := "", true; more && len(pages) < 20; {
		page := b.Get("/v1/devices?" + query + token).Expect(200).Object()
		var ids []string
		for _, d := range listField(page, "devices") {
			ids = append(ids, fmt.Sprint(asObject(d)["id"]))
		}
		pages = append(pages, ids)
		if token, more = page["next_page_token"].(string); more {
			token = "&page_token=" + token
		}
	}
	return pages
}

// TestSilentDevicesAreListed checks the list of silent devices: they are found even behind a page that contains
// none.
func TestSilentDevicesAreListed(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.API.Store = twoDeviceStore{s.API.Store} })
	for i := range 7 {
		b.Call("POST", "/v1/devices", adminToken, fmt.Sprintf(`{"id":"d-%d","tags":{"n":"%d"}}`, i, i%2)).Expect(201)
	}
	for i := range 4 {
		b.SendReport(fmt.Sprint("d-", i+1), `{"accept":false}`).Expect(200)
	}
	b.Must(b.Dispatcher.Seen.Flush(b.Context()))
	for query, want := range map[string]string{
		"":             "[[d-0] [] [d-5] [d-6]]",
		"&page_size=1": "[[d-0] [] [] [d-5] [d-6] []]",
		"&tag=n:0":     "[[d-0] [d-6] []]",
		"&prefix=d-3":  "[[]]",
	} {
		if got := fmt.Sprint(b.listDevices("silent_for_ms=60000" + query)); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	if rows := b.getWithAccept("/v1/devices?silent_for_ms=60000", csvType).Expect(200).CSVRows(); len(rows) != 4 {
		t.Errorf("%d lines of CSV, want a head and 3 devices: %v", len(rows), rows)
	}
	for _, bad := range []string{"0", "-1", "315360000001", "1d"} {
		b.Get("/v1/devices?silent_for_ms="+bad).ExpectProblem(422, "invalid_field", "silent_for_ms")
	}
	b.Get("/v1/devices?recent=5&silent_for_ms=1").ExpectProblem(422, "invalid_field", "recent", "silent_for_ms")
}

func (n twoDeviceStore) SearchDevices(ctx context.Context, f store.DeviceFilter, _ int) (store.DeviceSearchPage, error) {
	return n.Store.SearchDevices(ctx, f, 2) //nolint:wrapcheck // only for a test
}

// TestDevicesAreListedByTheirRegistrant checks the filters registered_by and created_since of the list of devices.
func TestDevicesAreListedByTheirRegistrant(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.API.Store = twoDeviceStore{s.API.Store} })
	for _, id := range []string{"a", "b", "c"} {
		b.Call("POST", "/v1/devices", adminToken, fmt.Sprintf(`{"id":%q}`, id)).Expect(201)
	}
	b.SendReport("x", `{}`).Expect(200)
	b.SendReport("y", `{}`).Expect(200)
	fleet := b.Get("/v1/devices/x").Expect(200).Object()["registered_by"]
	for query, want := range map[string]string{
		"registered_by=bootstrap":                                                     "[a b c]",
		"registered_by=bootstrap&prefix=b":                                            "[b]",
		fmt.Sprint("registered_by=", fleet):                                           "[x y]",
		"created_since=2020-01-01T00:00:00Z":                                          "[a b c x y]",
		"created_since=2100-01-01T00:00:00Z":                                          "[]",
		fmt.Sprint("created_since=2020-01-01T00:00:00Z&part=Y&registered_by=", fleet): "[y]",
	} {
		if got := fmt.Sprint(slices.Concat(b.listDevices(query)...)); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	b.Get("/v1/devices?recent=5&registered_by=bootstrap").ExpectProblem(422, "invalid_field")
}
