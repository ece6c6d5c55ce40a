package api_test

import (
	"fmt"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// A batch is made urgent and then normal again. Lists of batches show its lane, and the log has each change with
// its operator.
func TestLaneOfABatch(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":3}`)
		normal, urgent := b.CreateBatch(`{"pool":"p","devices":["d-1"]}`), b.CreateBatch(`{"pool":"p","lane":"urgent","devices":["d-2"]}`)
		b.expectLanes(map[string][]int64{"": {urgent, normal}, "urgent": {urgent}, "normal": {normal}})
		path := fmt.Sprintf("/v1/batches/%d", normal)
		if got := b.Call("PATCH", path, adminToken, `{"lane":"urgent"}`).Expect(200).Object(); got["lane"] != "urgent" {
			b.Errorf("changed: %v", got)
		}
		b.expectLanes(map[string][]int64{"urgent": {urgent, normal}, "normal": nil})
		events := string(b.Get("/v1/events?kind=batch.changed").Expect(200).Body)
		if !strings.Contains(events, `"lane=normal -> urgent"`) || !strings.Contains(events, `"actor":"bootstrap"`) {
			b.Errorf("the log: %s", events)
		}
		if csv := string(b.getWithAccept("/v1/batches?lane=urgent", csvType).Expect(200).Body); !strings.Contains(csv, ",lane,") || strings.Count(csv, ",urgent,") != 2 {
			b.Errorf("as CSV: %s", csv)
		}
		if got := b.Call("PATCH", path, adminToken, `{"lane":null}`).Expect(200).Object(); got["lane"] != "normal" {
			b.Errorf("by default: %v", got)
		}
		b.sendWithType("POST", "/v1/batches?pool=p&lane=urgent", csvType, "device\nd-3\n").Expect(201)
		b.expectLanes(map[string][]int64{"urgent": {urgent + 1, urgent}})
		for _, refused := range []rig.Response{
			b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","lane":"fast","devices":["d"]}`), b.Call("PATCH", path, adminToken, `{"lane":"fast"}`),
			b.Get("/v1/batches?lane=fast"), b.sendWithType("POST", "/v1/batches?pool=p&lane=fast", csvType, "device\nd-3\n"),
		} {
			refused.ExpectProblem(422, "invalid_field", "lane", "normal", "urgent")
		}
		b.Call("PATCH", path, adminToken, `{"lane":1}`).ExpectProblem(422, "invalid_field", "lane")
	})
}

func (b *testAPI) expectLanes(want map[string][]int64) {
	b.Helper()
	for lane, ids := range want {
		var list struct {
			Batches []struct {
				ID   int64
				Lane string
			}
		}
		b.Get("/v1/batches?lane=" + lane).Expect(200).Decode(&list)
		var got []int64
		for _, one := range list.Batches {
			got = append(got, one.ID)
		}
		if fmt.Sprint(got) != fmt.Sprint(ids) {
			b.Errorf("lane %q: %v, want %v", lane, got, ids)
		}
	}
}
