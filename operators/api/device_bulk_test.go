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
		b.PutPool("p", `{"capacity":1}`)
		for i := range 5 {
			b.SendReport(fmt.Sprint("x-", i), `{"accept":false}`).Expect(200)
		}
		b.Call("POST", "/v1/devices", adminToken, `{"id":"x-made"}`).Expect(201)
		b.CreateBatch(`{"pool":"p","devices":["x-4"]}`)
		fleet := fmt.Sprint(b.Get("/v1/devices/x-0").Expect(200).Object()["registered_by"])
		remove := func(query string) (deleted, kept any, next string) {
			b.Helper()
			answer := b.Call("POST", "/v1/devices/delete?"+query, adminToken, nil).Expect(200).Object()
			next, _ = answer["next_page_token"].(string)
			return answer["devices"], answer["kept"], next
		}
		query := "prefix=x-&registered_by=" + fleet
		if n, kept, next := remove(query + "&dry_run=true"); n != 4.0 || kept != 1.0 || next != "" {
			b.Errorf("dry run: %v deleted, %v kept, next %q", n, kept, next)
		}
		b.Get("/v1/devices/x-0").Expect(200)
		n, _, next := remove(query + "&page_size=3&refuse=true")
		m, kept, last := remove(query + "&page_size=3&refuse=true&page_token=" + next)
		if n != 3.0 || m != 1.0 || kept != 1.0 || next == "" || last != "" {
			b.Errorf("%v and %v devices, %v kept, tokens %q and %q", n, m, kept, next, last)
		}
		b.SendReport("x-0", `{}`).ExpectProblem(403, "forbidden")
		b.Get("/v1/devices/x-0").Expect(404)
		b.Get("/v1/devices/x-made").Expect(200)
		if n, _, _ := remove(query + "&cancel=true"); n != 1.0 {
			b.Errorf("with cancel: %v devices", n)
		}
		b.SendReport("x-4", `{}`).Expect(200)
		for query, names := range map[string]string{"": "at least one", "recent=3": "recent", "cancel=true": "at least one"} {
			b.Call("POST", "/v1/devices/delete?"+query, adminToken, nil).ExpectProblem(422, "invalid_field", names)
		}
	})
}
