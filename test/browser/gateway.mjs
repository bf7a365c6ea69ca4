// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Looks at a console that gets everything from two nodes. Its argument is JSON: url, nodes,
// service, pictures.
import assert from 'node:assert/strict';
import { Browser } from './harness.mjs';

const told = JSON.parse(process.argv[2]);
const b = new Browser(told.url, told.pictures);
await b.launch();
for (const node of told.nodes) {
  const page = await b.open(`/units?q=${node}+${told.service}`);
  const row = page.locator('table.units tbody tr', { hasText: node });
  assert.equal(await row.count(), 1, `one unit of ${node}`);
  assert.match(await row.innerText(), new RegExp(node));
  await row.locator('a[href^="/openings/"]').click();
  await page.locator('.frame', { hasText: 'main.burnThreeParts' }).first().waitFor();
  assert.match(await page.locator('main').innerText(), new RegExp(`${node}[\\s\\S]*main\\.burnThreeParts`));
}
await b.close();
assert.deepEqual(b.complaints, []);
