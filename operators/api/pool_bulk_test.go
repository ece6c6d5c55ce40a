package api_test

import "testing"

// TestAllPoolsArePausedAndResumed checks that one call pauses all pools, page by page, with its reason, and that another call resumes exactly
// the pools that the same operator paused. A dry run only counts.
func TestAllPoolsArePausedAndResumed(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		for _, pool := range []string{"a", "b", "c", "d"} {
			b.PutPool(pool, `{"capacity":1}`)
		}
		other := b.createToken("admin")
		b.Call("POST", "/v1/pools/b/pause", other, `{"reason":"repair"}`).Expect(200)
		change := func(operation string, want int) {
			b.Helper()
			sum, next := 0.0, ""
			for page := 1; ; page++ {
				answer := b.Call("POST", "/v1/pools/"+operation+"&page_size=3"+next, adminToken, `{"reason":"the server is down"}`).Expect(200).Object()
				n, _ := answer["pools"].(float64)
				sum += n
				token, more := answer["next_page_token"].(string)
				if !more {
					break
				}
				next = "&page_token=" + token
				if page > 2 {
					b.Fatal("more pages than pools")
				}
			}
			if sum != float64(want) {
				b.Errorf("%s: %v pools, want %d", operation, sum, want)
			}
		}
		expectReasons := func(want ...string) {
			b.Helper()
			for i, pool := range []string{"a", "b", "c", "d"} {
				if got := b.Get("/v1/pools/" + pool).Expect(200).Object(); got["pause_reason"] != want[i] || got["paused"] != (want[i] != "") {
					b.Errorf("pool %s: paused %v for %q, want %q", pool, got["paused"], got["pause_reason"], want[i])
				}
			}
		}
		change("pause?dry_run=true", 3)
		expectReasons("", "repair", "", "")
		change("pause?dry_run=false", 3)
		change("pause?dry_run=false", 0)
		expectReasons("the server is down", "repair", "the server is down", "the server is down")
		change("resume?dry_run=true", 3)
		change("resume?dry_run=false", 3)
		expectReasons("", "repair", "", "")
		b.Call("POST", "/v1/pools/pause", b.createToken("operator"), nil).ExpectProblem(403, "forbidden")
		b.Call("POST", "/v1/pools/resume", other, nil).Expect(200)
		expectReasons("", "", "", "")
	})
}
