package api_test

import (
	"strings"
	"testing"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// TestUsageOfAPool checks the highest usage of a pool's policies. It also checks the usage of one device by these
// policies and by the policies of its profile.
func TestUsageOfAPool(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60,"limits":[{"name":"daily","per":"tags.site","algorithm":"calendar","period":"month","timezone":"`+servers.NoonZone()+`","max":10},
			{"name":"same","per":"payload.to","algorithm":"duplicate","per_ms":3600000,"max":4}]}`)
		b.PutPool("free", `{"capacity":60}`)
		b.putProfile("solar", `{"name":"sparing","per":"device","algorithm":"sliding","windows":[{"max":3,"per_ms":60000},{"max":5,"per_ms":3600000}]}`)
		for id, site := range map[string]string{"d-1": "x", "d-2": "x", "d-3": "y"} {
			b.Call("POST", "/v1/devices", adminToken, `{"id":"`+id+`","profile":"solar","tags":{"site":"`+site+`"}}`).Expect(201)
			b.CreateBatch(`{"pool":"p","tasks":[{"device":"` + id + `","payload":{"to":1}}]}`)
			b.endTask(id, "succeeded", "")
		}
		read := func(query string) (u operators.Usage) {
			b.Get("/v1/pools/p/usage" + query).Expect(200).Decode(&u)
			return u
		}
		highest := read("").Highest
		if len(highest) != 3 || highest[0].Policy != "same" || highest[0].Used != 3 || !strings.HasPrefix(highest[0].Subject, "payload.to#") ||
			highest[1].Subject != "tags.site=x" || highest[1].Used != 2 || highest[1].Remaining != 8 || highest[1].Owner != "pool p" || highest[1].ResetMS <= 0 {
			b.Errorf("highest: %+v", highest)
		}
		if few := read("?limit=1"); len(few.Highest) != 1 || few.Usage != nil {
			b.Errorf("the first: %+v", few)
		}
		used := read("?device=d-3")
		if len(used.Usage) != 2 || used.Highest != nil || used.Usage[0].Used != 1 || used.Usage[0].Subject != "tags.site=y" ||
			used.Usage[1].Owner != "profile solar" || used.Usage[1].Used != 1 || used.Usage[1].Max != 3 || used.Usage[1].Allows != "3 per 1m0s" {
			b.Errorf("of d-3: %+v", used)
		}
		if text := string(b.Get("/v1/pools/free/usage").Expect(200).Body); strings.TrimSpace(text) != `{"highest":[]}` {
			b.Errorf("of a pool without policies: %s", text)
		}
		b.Get("/v1/pools/none/usage").ExpectProblem(404, "not_found")
		b.Get("/v1/pools/p/usage?device=none").ExpectProblem(404, "not_found")
		b.Get("/v1/pools/p/usage?limit=101").ExpectProblem(422, "invalid_field", "limit")
	})
}
