package api_test

import (
	"fmt"
	"testing"
)

// TestDevicesAreDeletedByFilter checks the deletion of the devices that match, page by page: a dry run only counts, devices with open tasks
// are kept, and refused ids are not registered again by a fleet token.
func TestDevicesAreDeletedByFilter(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putPool("p", `{"capacity":1}`)
		for i := range 5 {
			b.sendReport(fmt.Sprint("x-", i), `{"accept":false}`).expectStatus(200)
		}
		b.call("POST", "/v1/devices", adminToken, `{"id":"x-made"}`).expectStatus(201)
		b.createBatch(`{"pool":"p","devices":["x-4"]}`)
		fleet := fmt.Sprint(b.get("/v1/devices/x-0").expectStatus(200).decodeObject()["registered_by"])
		remove := func(query string) (deleted, kept any, next string) {
			b.Helper()
			answer := b.call("POST", "/v1/devices/delete?"+query, adminToken, nil).expectStatus(200).decodeObject()
			next, _ = answer["next_page_token"].(string)
			return answer["devices"], answer["kept"], next
		}
		query := "prefix=x-&registered_by=" + fleet
		if n, kept, next := remove(query + "&dry_run=true"); n != 4.0 || kept != 1.0 || next != "" {
			b.Errorf("dry run: %v deleted, %v kept, next %q", n, kept, next)
		}
		b.get("/v1/devices/x-0").expectStatus(200)
		n, _, next := remove(query + "&page_size=3&refuse=true")
		m, kept, last := remove(query + "&page_size=3&refuse=true&page_token=" + next)
		if n != 3.0 || m != 1.0 || kept != 1.0 || next == "" || last != "" {
			b.Errorf("%v and %v devices, %v kept, tokens %q and %q", n, m, kept, next, last)
		}
		b.sendReport("x-0", `{}`).expectProblem(403, "forbidden")
		b.get("/v1/devices/x-0").expectStatus(404)
		b.get("/v1/devices/x-made").expectStatus(200)
		if n, _, _ := remove(query + "&cancel=true"); n != 1.0 {
			b.Errorf("with cancel: %v devices", n)
		}
		b.sendReport("x-4", `{}`).expectStatus(200)
		for query, names := range map[string]string{"": "at least one", "recent=3": "recent", "cancel=true": "at least one"} {
			b.call("POST", "/v1/devices/delete?"+query, adminToken, nil).expectProblem(422, "invalid_field").expectMentions(b.T, names)
		}
	})
}
