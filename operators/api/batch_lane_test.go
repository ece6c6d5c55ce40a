package api_test

import (
	"fmt"
	"strings"
	"testing"
)

// A batch is made urgent and then normal again. Lists of batches show its lane, and the log has each change with
// its operator.
func TestLaneOfABatch(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putPool("p", `{"capacity":3}`)
		normal, urgent := b.createBatch(`{"pool":"p","devices":["d-1"]}`), b.createBatch(`{"pool":"p","lane":"urgent","devices":["d-2"]}`)
		b.expectLanes(map[string][]int64{"": {urgent, normal}, "urgent": {urgent}, "normal": {normal}})
		path := fmt.Sprintf("/v1/batches/%d", normal)
		if got := b.call("PATCH", path, adminToken, `{"lane":"urgent"}`).expectStatus(200).decodeObject(); got["lane"] != "urgent" {
			b.Errorf("changed: %v", got)
		}
		b.expectLanes(map[string][]int64{"urgent": {urgent, normal}, "normal": nil})
		events := string(b.get("/v1/events?kind=batch.changed").expectStatus(200).body)
		if !strings.Contains(events, `"lane=normal -> urgent"`) || !strings.Contains(events, `"actor":"bootstrap"`) {
			b.Errorf("the log: %s", events)
		}
		if csv := string(b.getWithAccept("/v1/batches?lane=urgent", csvType).expectStatus(200).body); !strings.Contains(csv, ",lane,") || strings.Count(csv, ",urgent,") != 2 {
			b.Errorf("as CSV: %s", csv)
		}
		if got := b.call("PATCH", path, adminToken, `{"lane":null}`).expectStatus(200).decodeObject(); got["lane"] != "normal" {
			b.Errorf("by default: %v", got)
		}
		b.sendWithType("POST", "/v1/batches?pool=p&lane=urgent", csvType, "device\nd-3\n").expectStatus(201)
		b.expectLanes(map[string][]int64{"urgent": {urgent + 1, urgent}})
		for _, refused := range []apiResponse{
			b.call("POST", "/v1/batches", adminToken, `{"pool":"p","lane":"fast","devices":["d"]}`), b.call("PATCH", path, adminToken, `{"lane":"fast"}`),
			b.get("/v1/batches?lane=fast"), b.sendWithType("POST", "/v1/batches?pool=p&lane=fast", csvType, "device\nd-3\n"),
		} {
			refused.expectProblem(422, "invalid_field").expectMentions(b.T, "lane", "normal", "urgent")
		}
		b.call("PATCH", path, adminToken, `{"lane":1}`).expectProblem(422, "invalid_field").expectMentions(b.T, "lane")
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
		b.get("/v1/batches?lane=" + lane).expectStatus(200).decode(&list)
		var got []int64
		for _, one := range list.Batches {
			got = append(got, one.ID)
		}
		if fmt.Sprint(got) != fmt.Sprint(ids) {
			b.Errorf("lane %q: %v, want %v", lane, got, ids)
		}
	}
}
