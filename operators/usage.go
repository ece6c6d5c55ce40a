package operators

// PolicyUse is the usage of one policy by one subject.
type PolicyUse struct {
	Policy    string `json:"policy"`
	Owner     string `json:"owner" doc:"Owner of the policy: pool NAME, profile NAME or limit set NAME"`
	Allows    string `json:"allows" doc:"What the window allows, for people"`
	Subject   string `json:"subject" doc:"The subject that is counted; values of a payload and facts only as a digest, unless the policy reveals them"`
	Used      int64  `json:"used" doc:"Starts in the window; for a limit set, the cost of its takes. More than max if max was lowered"`
	Max       int64  `json:"max"`
	Window    int    `json:"window" doc:"Index of the window, from 0; with sliding, the window with the least remaining"`
	Remaining int64  `json:"remaining"`
	ResetMS   int64  `json:"reset_ms" doc:"Time until part of the usage ends; with fixed and calendar, all of it. 0: nothing is used"`
}

// UsageQuery selects the usages of a pool.
type UsageQuery struct {
	Device string `query:"device" doc:"Device whose usage is listed; default: the subjects that used most" flag:"show the usage of this device"`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"20" doc:"Maximum number of subjects" flag:"number of subjects to show, highest usage first, 1 to 100 (default 20)"`
}

// Usage has the usage of the policies of a pool or of a limit set. The query determines which of the fields Highest and Usage is set.
type Usage struct {
	Highest []PolicyUse `json:"highest,omitzero" doc:"The subjects that used the largest share of their maximum; absent with device or facts"`
	Usage   []PolicyUse `json:"usage,omitzero" doc:"With device: one entry for each policy of the pool and of its profile that counts by properties of the device; with facts: one entry for each policy of the set"`
}
