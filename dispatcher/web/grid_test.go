package web_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// The grid shows a grant and its end without a reload, and so does the first page.
func TestGridFollows(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 60, devices(3)...)
	home := browse(t)
	home.open(b.url + "/")
	home.until(`document.querySelector("#pool-p .figure b").textContent === "0"`)
	grid := home.another()
	grid.open(b.url + "/pools/p")
	grid.until(`document.querySelectorAll(".grid .cell.free").length === 60`)

	granted := b.grant("d-0")
	cell := fmt.Sprintf("#slot-%d", granted.Slot)
	grid.until(fmt.Sprintf(`document.querySelector("%s").classList.contains("fresh")`, cell))
	grid.until(fmt.Sprintf(`document.querySelector("%s a").dataset.device === "d-0"`, cell))
	grid.until(`document.querySelector("#pool-head .figures b").textContent === "1"`)
	grid.until(`document.querySelectorAll("#holders tbody tr").length === 1`)
	home.until(`document.querySelector("#pool-p .figure b").textContent === "1"`)

	// What a slot says when it has the focus.
	grid.do(chromedp.Focus(chromedp.CSS(cell + " a")))
	grid.until(fmt.Sprintf(`!document.getElementById("tip").hidden && document.getElementById("tip").textContent.includes("d-0") &&
		document.getElementById("tip").textContent.includes("%d")`, granted.Token))

	b.report("d-0", map[string]any{"id": "r", "accept": false, "results": []map[string]any{{"task": granted.ID, "token": granted.Token, "status": "succeeded"}}})
	grid.until(`document.querySelectorAll(".grid .cell.free").length === 60`)
	grid.shoot("pool-free")
}
