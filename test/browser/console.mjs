// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Uses every page of a console as a person would, with the mouse, the keyboard, in wide and
// narrow windows, light and dark, without script; and takes the pictures of docs/.
// Its argument is JSON: url, service (the hot one), hostile (the name of another, unless
// pictures are taken), policies (the file), pictures and
// downloads (directories; without the first no pictures are taken).
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Browser, sizes } from './harness.mjs';

const told = JSON.parse(process.argv[2]);
const b = new Browser(told.url, told.pictures);
await b.launch();
let failed = 0;

async function step(name, test) {
  const begun = Date.now();
  b.complaints.length = 0;
  try {
    await test();
    assert.deepEqual(b.complaints, [], 'the browser complains');
    console.log(`ok   ${name} (${Date.now() - begun} ms)`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}: ${e.stack ?? e}`);
  }
  for (const c of b.browser.contexts()) await c.close();
}

// wellMade checks what holds for every page: its structure, axe's rules light and dark, no
// scrolling in two directions in a narrow window or at a zoom of 200 %, and its content
// without script.
async function wellMade(path, picture) {
  const page = await b.open(path);
  assert.equal(await page.locator('h1').count(), 1, 'one heading of the first level');
  for (const [colorScheme, suffix] of [['light', ''], ['dark', '-dark']]) {
    await page.emulateMedia({ colorScheme });
    assert.deepEqual(await b.accessible(page), [], `accessibility, ${colorScheme}`);
    if (picture && (!suffix || picture === 'opening')) await b.picture(page, picture + suffix);
  }
  await page.emulateMedia({ media: 'print' });
  assert.equal(await page.locator('nav').first().isVisible(), false, 'navigation is printed');
  await page.context().close();
  const narrow = await b.open(path, { size: sizes.narrow, scale: 2 });
  if (picture === 'unit') await b.picture(narrow, picture + '-narrow');
  for (const size of [sizes.narrow, { width: 640, height: 450 }]) {
    await narrow.setViewportSize(size);
    assert.equal(await b.overflows(narrow), false, `wider than a window of ${size.width} pixels`);
    assert.deepEqual(await b.accessible(narrow), [], `accessibility at ${size.width} pixels`);
  }
  await narrow.context().close();
  const plain = await b.open(path, { script: false });
  assert.ok((await textOf(plain.locator('main'))).length > 100, 'content without script');
  await plain.context().close();
}

// textOf returns what is shown, with spaces for those that do not break.
const textOf = async locator => (await locator.innerText()).replaceAll('\u00a0', ' ');

let unitPath, openingPath, baselinePath;

await step('openings: one row says when, who, why and which function', async () => {
  const page = await b.open('/');
  const row = page.locator('table.openings tbody tr', { hasText: 'policy cpu' }).first();
  const text = await textOf(row);
  assert.match(text, new RegExp(`\\d\\d:\\d\\d:\\d\\d UTC[\\s\\S]*for [\\s\\S]*${told.service}[\\s\\S]*cpu_utilization [\\d.]+ %, threshold 60 %[\\s\\S]*main\\.burnThreeParts`));
  await row.getByRole('link', { name: 'main.burnThreeParts' }).click();
  await page.locator('tr.current', { hasText: 'main.burnThreeParts' }).waitFor();
});

await step('openings: filters are found without the button, and stay with another range', async () => {
  const page = await b.open('/');
  await page.getByLabel('reason').selectOption('baseline');
  await page.waitForFunction(() => location.search === '?reason=baseline');
  await page.locator('table.openings tbody tr', { hasText: 'baseline' }).first().waitFor();
  await page.getByRole('group', { name: 'Time range' }).getByRole('link', { name: '1 h' }).click();
  await page.waitForURL('**/?range=1h&reason=baseline');
  assert.equal(await page.getByLabel('reason').inputValue(), 'baseline');
});

await step('openings: times are in the zone of the reader, with UTC beside them', async () => {
  const context = await b.browser.newContext({ timezoneId: 'Asia/Kolkata' });
  const page = await context.newPage();
  await page.goto(b.url + '/');
  assert.match(await textOf(page.locator('table.openings tbody time').first()), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \((\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC\)$/);
});

await step('openings: well made', () => wellMade('/', ''));

await step('units: the one with a trigger, with its readings, state and last trigger', async () => {
  const page = await b.open('/units?sort=triggers');
  const row = page.locator('table.units tbody tr').first();
  await row.getByRole('link', { name: told.service }).waitFor();
  unitPath = await row.getByRole('link', { name: told.service }).getAttribute('href');
  const text = await textOf(row);
  for (const part of ['cpu_utilization', '/ 60', 'cooling down', 'ago']) assert.ok(text.includes(part), `${part} in ${text}`);
});

await step('units: search finds while typing, and says so when it finds nothing', async () => {
  const page = await b.open('/units');
  const search = page.getByRole('searchbox');
  await search.fill(told.service);
  await page.waitForFunction(() => location.search.includes('q='));
  await page.locator('.pager', { hasText: '1 of 1 unit' }).waitFor();
  await search.fill('<script>nothing</script>');
  await page.getByText('No unit matches').waitFor();
  await page.getByRole('link', { name: 'Only what is hot or busy' }).click();
  await page.locator('table.units').waitFor();
});

await step('units: a name that is markup is a text', async () => {
  if (told.pictures) return;
  const page = await b.open('/units?all=1');
  await page.getByRole('link', { name: told.hostile, exact: true }).click();
  await page.waitForURL('**/units/**');
  assert.equal(await textOf(page.locator('h1')), told.hostile);
  assert.equal(await page.locator('main img, main script').count(), 0);
});

await step('units: sorted by the click on a head, with the keyboard', async () => {
  const page = await b.open('/units');
  await page.getByRole('columnheader', { name: 'Unit' }).getByRole('link').focus();
  await page.keyboard.press('Enter');
  await page.locator('th[aria-sort]', { hasText: 'Unit' }).waitFor();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content', 'the first stop of the keyboard');
});

await step('units: well made', () => wellMade('/units', 'units'));

await step('unit: trends with what the mouse and the keyboard are on, and a key that leads to the opening', async () => {
  const page = await b.open(unitPath);
  const chart = page.locator('figure.trend', { hasText: 'cpu_utilization' });
  await chart.locator('canvas').waitFor();
  const over = chart.locator('.u-over');
  const box = await over.boundingBox();
  await page.mouse.move(box.x + box.width - 40, box.y + box.height / 2);
  await page.locator('p.under', { hasText: /\d\d:\d\d:\d\d/ }).waitFor();
  await chart.locator('.readout', { hasText: 'threshold 60' }).waitFor();
  await chart.locator('.plot').focus();
  for (let i = 0; i < 3; i++) await page.keyboard.press('ArrowLeft');
  assert.match(await textOf(page.locator('p.under')), /\d\d:\d\d:\d\d/);
  for (let i = 0; i < 400 && !/opening by cpu: cpu_utilization/.test(await textOf(page.locator('p.under'))); i++) await page.keyboard.press('ArrowLeft');
  await page.keyboard.press('Enter');
  await page.waitForURL('**/openings/**');
});

await step('unit: openings and refusals as tables, and the range in the URL', async () => {
  const page = await b.open(unitPath);
  const rows = page.locator('section[aria-labelledby=openings-title] tbody tr');
  const hot = rows.filter({ hasNotText: 'baseline' }).first();
  const text = await textOf(hot);
  for (const part of ['cpu_utilization', 'threshold 60', 'duration']) assert.ok(text.includes(part), `${part} in ${text}`);
  openingPath = await hot.getByRole('link').first().getAttribute('href');
  baselinePath = await rows.filter({ hasText: 'baseline' }).last().getByRole('link').first().getAttribute('href');
  assert.match(await textOf(page.locator('section[aria-labelledby=refusals]')), /trial[\s\S]*dry run/);
  await page.getByRole('group', { name: 'Time range' }).getByRole('link', { name: '24 h' }).click();
  await page.getByRole('link', { name: '24 h' }).and(page.locator('[aria-current]')).waitFor();
  assert.ok(page.url().includes('?'), page.url());
});

await step('unit: well made', () => wellMade(unitPath, 'unit'));

await step('opening: says why, and shows the functions that were hot', async () => {
  const page = await b.open(openingPath);
  assert.match(await textOf(page.locator('p.why')), /Policy cpu opened the gate of .* because cpu_utilization was [\d.]+ %, over the threshold of 60 % \(3s average\)\. It closed after 5 s/);
  const rows = page.locator('table.functions tbody tr');
  assert.match(await textOf(rows.first()), /main\.burnThreeParts/);
  const share = async name => parseFloat(await textOf(rows.filter({ hasText: name }).first().locator('td').first()));
  const three = await share('main.burnThreeParts'), one = await share('main.burnOnePart');
  assert.ok(three > 1.8 * one && one > 0, `three parts are ${three} %, one part ${one} %`);
  const phases = await textOf(page.getByRole('list', { name: 'By phase' }));
  for (const p of ['before the trigger', 'after the trigger']) assert.ok(phases.includes(p), phases);
});

await step('opening: the flame graph follows mouse, keyboard, search and the table', async () => {
  const page = await b.open(openingPath);
  const frame = page.locator('.frame', { hasText: 'main.burnThreeParts' }).first();
  await frame.waitFor();
  const details = page.locator('[data-details]');
  await frame.hover();
  await details.getByText('main.burnThreeParts').waitFor();
  assert.match(await textOf(details), /main\.go:\d+[\s\S]*total [\d.]+ %[\s\S]*self [\d.]+ %/);
  const before = (await frame.boundingBox()).width;
  await frame.click();
  await page.waitForFunction(w => [...document.querySelectorAll('.frame')].some(f => f.textContent.includes('burnThreeParts') && f.clientWidth > w + 5), before);
  await page.getByRole('button', { name: 'Reset', exact: true }).click();
  const graph = page.getByRole('application', { name: /Flame graph/ });
  await page.mouse.move(5, 5);
  await graph.focus();
  for (const key of ['ArrowDown', 'ArrowDown', 'ArrowUp', 'ArrowDown', 'ArrowDown', 'Enter']) await page.keyboard.press(key);
  assert.ok(await page.locator('.frame.cursor').count() === 1, 'a frame has the cursor');
  assert.equal(await details.getAttribute('aria-live'), 'polite');
  await page.keyboard.press('Escape');
  await page.keyboard.press('/');
  await page.keyboard.type('burnone');
  await page.locator('[data-found]', { hasText: /found [\d.]+ %/ }).waitFor();
  assert.ok(await page.locator('.frame.marked', { hasText: 'burnOnePart' }).count() > 0);
  await page.waitForFunction(() => location.search.includes('burnone'));
  await page.locator('table.functions').getByRole('link', { name: 'main.burnOnePart' }).click();
  await page.waitForFunction(() => new URLSearchParams(location.search).get('function') === 'main.burnOnePart');
  const again = await b.open(new URL(page.url()).pathname + new URL(page.url()).search);
  await again.locator('tr.current', { hasText: 'main.burnOnePart' }).waitFor();
});

await step('opening: by phase, and what threads waited for', async () => {
  const page = await b.open(openingPath);
  await page.getByRole('list', { name: 'By phase' }).getByRole('link', { name: 'before the trigger' }).click();
  await page.locator('p.total', { hasText: 'before the trigger' }).waitFor();
  await page.getByRole('navigation', { name: 'Profiles' }).getByRole('link', { name: /[Ww]ait/ }).first().click();
  await page.locator('.frame', { hasText: 'waitInSleeps' }).or(page.locator('table.functions', { hasText: 'wait' })).first().waitFor();
});

await step('opening: against its baseline', async () => {
  const page = await b.open(openingPath);
  const choice = page.getByLabel('Compare with');
  const option = await choice.locator('option', { hasText: /baseline/i }).first().getAttribute('value');
  await choice.selectOption(option);
  await page.getByRole('button', { name: 'Compare' }).click();
  await page.waitForURL('**against=**');
  await page.getByRole('list', { name: 'Colours' }).waitFor();
  await page.locator('.frame.more3, .frame.more2, .frame.more1').first().waitFor();
  assert.match(await textOf(page.locator('table.functions tbody tr').first()), /[+−±]\d/);
  assert.match(await textOf(page.locator('#command')), /-diff_base/);
  assert.deepEqual(await b.accessible(page), []);
});

await step('opening: the pprof file, the command, and the report that needs no network', async () => {
  const page = await b.open(openingPath);
  const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: /as pprof file/ }).click()]);
  assert.match(file.suggestedFilename(), /^[\w.-]+\.pb\.gz$/);
  const saved = join(told.downloads, 'profile.pb.gz');
  await file.saveAs(saved);
  assert.ok(gunzipSync(await readFile(saved)).includes('main.burnThreeParts'), 'the file has the hot function');
  await page.getByRole('button', { name: 'Copy' }).click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^go tool pprof /);
  const [report] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Report as one HTML file' }).click()]);
  const reportFile = join(told.downloads, 'report.html');
  await report.saveAs(reportFile);
  const context = await b.browser.newContext({ offline: true });
  const alone = await context.newPage();
  b.watch(alone, 'report.html', []);
  await alone.goto('file://' + reportFile);
  await alone.locator('.frame', { hasText: 'main.burnThreeParts' }).first().waitFor();
  assert.deepEqual(await b.accessible(alone), []);
});

await step('opening: well made', () => wellMade(openingPath, 'opening'));

await step('baseline: a page like any other opening', async () => {
  const page = await b.open(baselinePath);
  await page.locator('p.why', { hasText: 'baseline' }).waitFor();
});

await step('policies: in force, what they did, what they would have done', async () => {
  const page = await b.open('/policies');
  const cpu = await textOf(page.locator('#policies tr', { hasText: 'cpu_utilization' }));
  assert.match(cpu, /cpu[\s\S]*cpu_utilization over 60 %, 3s average/);
  const trial = await textOf(page.locator('#policies tr', { hasText: 'trial' }));
  assert.match(trial, /dry run/);
});

await step('policies: a list with a mistake is not saved, a good one is', async () => {
  const page = await b.open('/policies', { expected: [400, 422] });
  const text = page.getByLabel('The list of policies, as YAML');
  const good = await text.inputValue();
  await text.fill(good.replace('any_of', 'any_off'));
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('alert').filter({ hasText: 'any_off' }).waitFor();
  assert.equal(await readFile(told.policies, 'utf8'), good, 'the file was changed');
  await text.fill(good + '# edited in the browser\n');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('status').filter({ hasText: 'Saved' }).waitFor();
  assert.equal(await readFile(told.policies + '.previous', 'utf8'), good);
  // Somebody else changes the file while it is edited here.
  const other = await b.open('/policies', { expected: [409, 412] });
  await writeFile(told.policies, good + '# edited in the browser\n# and by hand\n');
  await other.getByLabel('The list of policies, as YAML').fill(good);
  await other.getByRole('button', { name: 'Save' }).click();
  await other.getByRole('alert').filter({ hasText: 'has changed since' }).waitFor();
  assert.match(await readFile(told.policies, 'utf8'), /and by hand/);
});

await step('policies: one policy is changed by its form, and the others stay', async () => {
  const before = '# Ours.\n' + await readFile(told.policies, 'utf8');
  await writeFile(told.policies, before);
  const page = await b.open('/policies', { expected: [422] });
  const one = page.locator('#policy');
  await one.getByRole('button', { name: 'trial' }).click();
  await one.locator('legend', { hasText: 'trial' }).waitFor();
  await page.getByLabel('is over').fill('much');
  await page.getByLabel('is over').press('Enter');
  await one.getByRole('alert').waitFor();
  await page.getByLabel('is over').fill('1234');
  await page.getByLabel('then rests for').fill('2h');
  await one.getByRole('button', { name: 'Put it into the text' }).click();
  await page.getByText('It is not saved yet').waitFor();
  assert.equal(await readFile(told.policies, 'utf8'), before);
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await page.getByText('Saved.').waitFor();
  const after = await readFile(told.policies, 'utf8');
  const lines = (text) => text.split('\n').filter((line) => !/1234|2h/.test(line));
  assert.match(after, /1234/);
  assert.match(after, /cooldown: 2h/);
  assert.match(after, /^# Ours\./);
  assert.ok(lines(after).every((line) => before.includes(line)), after);
  await page.locator('#took', { hasText: /in force/ }).waitFor({ timeout: 60_000 }); // by itself
});

await step('policies: well made', () => wellMade('/policies', 'policies'));

await step('health: what is sampled, losses, costs', async () => {
  const page = await b.open('/health');
  const text = await textOf(page.locator('main'));
  for (const part of ['of-this-test', 'sampling started', 'What is sampled', 'Losses', 'exported']) assert.ok(text.includes(part), `${part} in ${text.slice(0, 3000)}`);
});

await step('health: well made', () => wellMade('/health', 'health'));

await step('profile now opens the gate by hand', async () => {
  const page = await b.open(unitPath);
  await page.getByRole('button', { name: 'Profile now' }).click();
  await page.waitForLoadState('networkidle');
  await page.goto(b.url + unitPath);
  await page.locator('section[aria-labelledby=openings-title] tbody tr', { hasText: 'manual' }).first().waitFor({ timeout: 15000 });
});

await step('who comes from elsewhere changes nothing', async () => {
  const token = async () => (await (await fetch(b.url + '/policies')).text()).match(/name="token" value="([^"]*)"/)?.[1];
  const post = (headers, body) => fetch(b.url + '/policies', { method: 'POST', headers: { 'Content-Type': 'application/x-www-form-urlencoded', ...headers }, body, redirect: 'manual' });
  assert.equal((await post({ Origin: 'https://evil.example' }, `token=${await token()}&do=save&text=`)).status, 403);
  assert.ok((await post({}, 'do=save&text=')).status >= 400, 'without a token');
  const missing = await b.open('/openings/..%2f..%2fetc%2fpasswd', { expected: [404, 400] });
  assert.ok(!(await missing.content()).includes('root:'));
});

await b.close();
process.exit(failed ? 1 : 0);
